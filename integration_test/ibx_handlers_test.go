package integration_test

var ibxHandlers = []requirement{
	{number: 73, text: "a message goes to the handler of its topic", verdict: held, shownBy: "TestDispatcherDecides"},
	{number: 74, text: "an unknown topic is warned of and its message kept", verdict: inOtherWords,
		why:     "It comes again without a charge: a rolling deployment whose old processes do not know the new topic must not use up its attempts.",
		shownBy: "TestUnknownTopicIsKept"},
	{number: 75, text: "a handler's error decides between abandon and fail", verdict: held, shownBy: "TestDispatcherDecides"},
	{number: 76, text: "a handler gets the message and a context", verdict: held, shownBy: "TestDispatcherLogs"},
	{number: 77, text: "handlers should be idempotent", verdict: inOtherWords,
		why:     "Those in a transaction need not be as far as the database goes: the ack commits with what they write. Detached ones should.",
		shownBy: "TestDispatcherCommitsWithItsHandlers"},
	{number: 78, text: "no two handlers have one message at one time", verdict: held, shownBy: "TestPausedHandlerAppliesNothing TestDispatchersUnderFire"},
	{number: 79, text: "different messages are handled at the same time", verdict: held, shownBy: "TestDispatcherTakesNoMoreThanItHandles"},
}
