package kafka

import "github.com/IBM/sarama"

// record is what a window holds of a message.
type record struct {
	msg     *sarama.ConsumerMessage
	own     bool // its bytes are a copy, and not a part of the fetched batch
	cause   error
	unkeyed bool // Key panicked, so it is unknown what it must not overtake
}

// lastError is why it failed last; nil = not known.
func (r record) lastError() error { return r.cause }

// sizeOf counts what a record keeps in memory.
func sizeOf(msg *sarama.ConsumerMessage) int {
	n := len(msg.Key) + len(msg.Value)
	for _, h := range msg.Headers {
		if h != nil {
			n += len(h.Key) + len(h.Value)
		}
	}
	return n
}

// keep has a record that waits for long hold its own bytes alone: as a part of what was fetched it would keep all of
// that in memory.
func (r *record) keep() {
	if !r.own {
		r.msg, r.own = cloned(r.msg), true
	}
}

// cloned returns a message that shares no bytes with another: what sarama fetched is one slice, where an append to a
// value writes over the headers and the next message.
func cloned(msg *sarama.ConsumerMessage) *sarama.ConsumerMessage {
	c := *msg
	all := make([]byte, 0, sizeOf(msg))
	part := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		from := len(all)
		all = append(all, b...)
		return all[from:len(all):len(all)]
	}
	c.Key, c.Value = part(msg.Key), part(msg.Value)
	if msg.Headers != nil {
		headers := make([]sarama.RecordHeader, len(msg.Headers))
		c.Headers = make([]*sarama.RecordHeader, len(msg.Headers))
		for i, h := range msg.Headers {
			if h != nil {
				headers[i] = sarama.RecordHeader{Key: part(h.Key), Value: part(h.Value)}
				c.Headers[i] = &headers[i]
			}
		}
	}
	return &c
}
