package integration_test

var ibxHandlers = []requirement{
	{number: 73, text: "a message goes to the handler of its topic", verdict: held, shownBy: "TestDispatcherDecides"},
	{number: 74, text: "an unknown topic is warned of and its message kept", verdict: inOtherWords,
		why: "Without a charge, however long: a rolling deployment whose old processes do not know the new topic must " +
			"not use up its attempts. " +
			"It is left to others for 10 s, and then waits a minute at a time, after an hour longer and longer, up to an " +
			"hour. DispatcherConfig.DefaultHandler takes such messages.",
		shownBy: "TestUnknownTopicIsKept TestServicesShareAQueue TestTopicWithoutAHandlerLosesNothing " +
			"TestDefaultHandlerTakesTheRest"},
	{
		number: 75, text: "a handler's error decides between abandon and fail", verdict: held,
		shownBy: "TestDispatcherDecides",
	},
	{number: 76, text: "a handler gets the message and a context", verdict: held, shownBy: "TestDispatcherLogs"},
	{number: 77, text: "handlers should be idempotent", verdict: inOtherWords,
		why: "Those in a transaction need not be as far as the database goes: the ack commits with what they write. " +
			"Detached ones should.",
		shownBy: "TestDispatcherCommitsWithItsHandlers"},
	{number: 78, text: "no two handlers have one message at one time", verdict: inOtherWords,
		why: "Never in one process. In another one a detached handler may begin while that of a process which stood " +
			"still for longer than its " +
			"lease has not returned; its context has ended. A handler in a transaction keeps the message as long as its " +
			"connection lasts, and commits " +
			"nothing afterwards.",
		shownBy: "TestPausedHandlerAppliesNothing TestStoppedProcessChangesNothing TestDispatchersUnderFire"},
	{
		number: 79, text: "different messages are handled at the same time", verdict: held,
		shownBy: "TestDispatcherTakesNoMoreThanItHandles",
	},
}
