package kafka

import (
	"encoding/binary"
	"hash"

	"github.com/IBM/sarama"
)

// NewMurmur2Partitioner is a Producer.Partitioner that sends a key to the same partition as Java's clients, and as
// librdkafka with partitioner=murmur2_random. sarama's default hashes differently: set it in PublisherConfig.Configure
// for a topic that both write to. Let consumers drain an existing topic first, because keys move to other partitions.
func NewMurmur2Partitioner(topic string) sarama.Partitioner {
	return sarama.NewCustomPartitioner(sarama.WithAbsFirst(),
		sarama.WithCustomHashFunction(func() hash.Hash32 { return new(murmur2) }))(topic)
}

// murmur2 hashes its input as Java's clients do.
type murmur2 struct{ data []byte }

func (m *murmur2) Write(p []byte) (int, error) { m.data = append(m.data, p...); return len(p), nil }
func (m *murmur2) Reset()                      { m.data = m.data[:0] }
func (m *murmur2) Size() int                   { return 4 }
func (m *murmur2) BlockSize() int              { return 4 }
func (m *murmur2) Sum(b []byte) []byte         { return binary.BigEndian.AppendUint32(b, m.Sum32()) }

func (m *murmur2) Sum32() uint32 {
	const seed, mul, shift = 0x9747b28c, 0x5bd1e995, 24
	data := m.data
	h := uint32(seed) ^ uint32(len(data)) //nolint:gosec // keys are shorter
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * mul
		h = h*mul ^ (k^k>>shift)*mul
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * mul
	}
	h = (h ^ h>>13) * mul
	return h ^ h>>15
}
