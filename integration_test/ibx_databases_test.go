package integration_test

var ibxDatabases = []requirement{
	{number: 85, text: "each database has a store of its own", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 86, text: "a strategy selects the store to poll", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{
		number: 87, text: "round robin takes one batch of each in turn", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{
		number: 88, text: "drain first stays with a store until it is empty", verdict: held,
		shownBy: "TestFleetSelection TestQueueGroupTakesTurns",
	},
	{number: 89, text: "each store has an identifier", verdict: held, shownBy: "TestStoresOfAFleet"},
	{number: 90, text: "lines about messages name the store", verdict: held, shownBy: "TestStoresOfAFleet"},
	{number: 91, text: "the router returns the store of a key", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 92, text: "an unknown key is an error", verdict: inOtherWords, why: "It returns fleet.ErrUnknownDatabase.",
		shownBy: "TestStoresOfAFleet",
	},
}

var ibxDiscovery = []requirement{
	{
		number: 93, text: "the list of databases is refreshed periodically", verdict: held,
		shownBy: "TestFleetFollowsItsDiscovery",
	},
	{number: 94, text: "every 5 minutes by default", verdict: held, shownBy: "TestFleetRefreshInterval"},
	{number: 95, text: "new databases get stores", verdict: held, shownBy: "TestFleetFollowsItsDiscovery"},
	{number: 96, text: "databases that are gone lose theirs", verdict: inOtherWords,
		why: "When the last use of it has ended. An answer without any database is taken for a fault, until it has been " +
			"given three times and for as long as " +
			"the interval of refreshing.",
		shownBy: "TestFleetFollowsItsDiscovery TestFleetBelievesAnEmptyDiscoveryInTheEnd"},
	{number: 97, text: "what has not changed is kept", verdict: held, shownBy: "TestFleetFollowsItsDiscovery"},
}
