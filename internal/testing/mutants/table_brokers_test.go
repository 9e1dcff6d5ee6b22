package mutants

// brokerMutants are mutants of packages amqp, kafka and nats, and of internal/inbound.
var brokerMutants = []Mutant{
	{
		Name: "P1", File: "amqp/marshaler.go", In: "amqp", Test: "TestLongStrings",
		Breaks: "a long content type closes the connection of all topics",
		Old: `		checkLength("content type", out.ContentType),
`,
		New: "",
	},
	{
		Name: "P2", File: "amqp/config.go", In: "amqp", Test: "TestURIThatCannotBeParsed",
		Breaks: "half of an unescaped password is dialed and shown in the error",
		Old:    `case err != nil, strings.ContainsAny(user, "/?#"):`,
		New:    `case err != nil, user == "/?#":`,
	},
	{
		Name: "P3", File: "amqp/classify.go", In: "integration_test", Test: "TestRabbitMQRefusesAnExchange", Second: true,
		Breaks: "an exchange that cannot be declared kills messages of all topics",
		Old:    "errors.As(err, &reply):",
		New:    "errors.As(err, &reply) && !reply.Server:",
	},
	{
		Name: "P4", File: "amqp/publisher.go", In: "integration_test", Test: "TestRabbitMQRefusesAnExchange", Second: true,
		Breaks: "each failed declaration leaks a channel",
		Old: `			_ = ch.Close()
			return nil, fmt.Errorf("%w %q`,
		New: `			return nil, fmt.Errorf("%w %q`,
	},
	{
		Name: "P5", File: "amqp/publisher.go", In: "integration_test", Test: "TestRabbitMQRefuses", Second: true,
		Breaks: "a message over max_message_size kills the messages in flight with it",
		Old:    "p.channel(topic, exchange, true)",
		New:    "p.channel(topic, exchange, false)",
	},
	{
		Name: "K1", File: "kafka/partition.go", In: "kafka", Test: "TestMarksOnlyTheWatermark",
		Breaks: "an offset is committed past unhandled messages",
		Old:    "if watermark := p.window.Watermark(); watermark > p.marked {",
		New:    "if watermark := p.window.Watermark() + 1; watermark > p.marked {",
	},
	{
		Name: "K2", File: "kafka/partition.go", In: "kafka", Test: "TestNothingStartsAfterTheEnd",
		Breaks: "a partition that was taken away takes slots of others",
		Old: `	if p.stopped {
		return nil, nil
	}
`,
		New: "",
	},
	{
		Name: "K3", File: "kafka/partition.go", In: "kafka", Test: "TestRetryAfterBlocksItsKeySoLong",
		Breaks: "RetryAfter waits for the backoff of a failure instead",
		Old:    "	if later == 0 {\n		later = core.Backoff",
		New:    "	if true {\n		later = core.Backoff",
	},
	{
		Name: "K4", File: "kafka/partition.go", In: "kafka", Test: "TestFailingKeysLeaveHalfOfThePlaces",
		Breaks: "failing keys use up all slots",
		Old:    "if again && !p.retry {",
		New:    "if p.retry = p.retry || again; false {",
	},
	{
		Name: "K5", File: "kafka/partition.go", In: "kafka", Test: "TestKeyMayPanic",
		Breaks: "a message whose key cannot be read is overtaken by others of its record key",
		Old:    "key, rec.unkeyed = msg.Key, true",
		New:    "key, rec.unkeyed = nil, true",
	},
	{
		Name: "K6", File: "kafka/partition.go", In: "kafka", Test: "TestClaimResumesAtItsStart",
		Breaks: "a partition that was paused before a rebalance stays paused",
		Old:    "	p.group.Resume(p.here) // sarama remembers a pause across rebalances\n",
		New:    "",
	},
	{
		Name: "N1", File: "nats/term.go", In: "nats", Test: "TestAGapIsWaitedFor",
		Breaks: "a message overtakes an earlier one of its key that was lost in transit",
		Old:    "if t.last != 0 && meta.Sequence.Consumer != t.last+1 {",
		New:    "if false {",
	},
	{
		Name: "N2", File: "nats/term.go", In: "nats", Test: "TestWithoutALeaseNothingIsDone",
		Breaks: "two processes handle messages of one consumer",
		Old:    "if t.stopped || !t.whole || !t.valid() {",
		New:    "if t.stopped || !t.whole {",
	},
	{
		Name: "N3", File: "nats/term.go", In: "nats", Test: "TestWithoutALeaseNothingIsDone",
		Breaks: "a process acks although it no longer owns the consumer",
		Old:    "if !t.valid() || in.Ack() != nil {",
		New:    "if in.Ack() != nil {",
	},
	{
		Name: "N4", File: "nats/term.go", In: "nats", Test: "TestWithoutALeaseNothingIsDone",
		Breaks: "an ack that could not be sent is forgotten",
		Old:    "if !t.valid() || len(t.unacked) == 0 {",
		New:    "if true {",
	},
	{
		Name: "N5", File: "nats/term.go", In: "nats", Test: "TestWhatAHandlerHasIsNotHandedBack",
		Breaks: "a message is redelivered while a handler has it",
		Old:    "if !it.Value.out {",
		New:    "if true {",
	},
	{
		Name: "N6", File: "nats/term.go", In: "nats", Test: "TestOwnerWaitsForAllThatIsPending",
		Breaks: "a new owner overtakes messages that the previous owner had in flight",
		Old:    "t.whole = info.NumAckPending <= held; t.whole",
		New:    "t.whole = true; held >= 0",
	},
	{
		Name: "N7", File: "nats/term.go", In: "nats", Test: "TestPinOfAMessage",
		Breaks: "the messages of another owner are handled",
		Old:    `return pin == "" || pin == t.pin`,
		New:    `return true`,
	},
	{
		Name: "IN1", File: "internal/inbound/deliverer.go", In: "internal/inbound",
		Test:   "TestUnreadableMessagesAreNotQuoted",
		Breaks: "the payload of an unreadable message is logged",
		Old:    "	err = errors.New(text.WithoutQuotes(err))\n",
		New:    "	_, err = errors.New(text.WithoutQuotes(err)), err\n",
	},
}
