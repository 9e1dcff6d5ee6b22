package forwarder

// Verdict says whose fault a failed publish is, and so what becomes of the message.
type Verdict int

const (
	// Rejected charges the message an attempt and tries again after a backoff; its key is held meanwhile.
	// It is the verdict on an error that nobody recognises.
	Rejected Verdict = iota
	// Unavailable blames the broker: the message's topic pauses with a backoff, no attempt is charged,
	// and one trial message reopens the topic.
	Unavailable
	// Permanent marks the message dead at once: trying again cannot help.
	Permanent
)

// String returns the verdict in lower case, for logs and metrics.
func (v Verdict) String() string {
	switch v {
	case Rejected:
		return "rejected"
	case Unavailable:
		return "unavailable"
	case Permanent:
		return "permanent"
	}
	return "unknown"
}

// Classifier gives a verdict on an error that a publisher returned. It must be safe for concurrent use.
// publisher/kafka and publisher/nats bring one each.
type Classifier func(err error) Verdict
