package kafka

import "github.com/IBM/sarama"

// record is a message in a window.
type record struct {
	msg     *sarama.ConsumerMessage
	own     bool // its bytes are a copy, not part of a fetched batch
	cause   error
	unkeyed bool // Key panicked, so its order is unknown
}

// lastError is the error of the last attempt; nil = unknown.
func (r record) lastError() error { return r.cause }

// sizeOf returns the memory that a record needs.
func sizeOf(msg *sarama.ConsumerMessage) int {
	n := len(msg.Key) + len(msg.Value)
	for _, h := range msg.Headers {
		if h != nil {
			n += len(h.Key) + len(h.Value)
		}
	}
	return n
}

// keep copies the bytes of a record that has to wait, because otherwise they would keep the whole fetched batch in
// memory.
func (r *record) keep() {
	if !r.own {
		r.msg, r.own = cloned(r.msg), true
	}
}

// cloned returns a message that shares no bytes with others: everything that sarama fetches is a single slice, in which
// an append to a value would overwrite the headers and the next message.
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
