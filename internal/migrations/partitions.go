package migrations

import (
	"fmt"
	"strings"
)

// Ahead is the number of partitions created ahead of the ids in use.
const Ahead = 8

// InPartitions returns the text of the first migration with the outbox in partitions of this many ids. Each partition
// has the storage options of the unpartitioned table, which a partitioned table cannot have. The migration stays the
// same.
func (m Migration) InPartitions(size int64) (string, error) {
	const create, with, end = "CREATE TABLE {outbox} (", "\n) WITH (", "\n);\n"
	head, rest, begins := strings.Cut(m.Text, create)
	columns, rest, has := strings.Cut(rest, with)
	options, rest, ends := strings.Cut(rest, end)
	if !begins || !has || !ends {
		return "", fmt.Errorf("migration %s: it makes no outbox with storage options", m)
	}
	var text strings.Builder
	text.WriteString(head + create + columns + "\n) PARTITION BY RANGE (id);\n")
	from := "MINVALUE"
	for i := range 1 + Ahead { // the first is the one in use
		to := fmt.Sprint(int64(i+1) * size)
		fmt.Fprintf(&text, "\nCREATE TABLE {outbox_p%d} PARTITION OF {outbox} FOR VALUES FROM (%s) TO (%s) WITH (%s\n);\n",
			i, from, to, options)
		from = to
	}
	fmt.Fprintf(&text, "\nCREATE TABLE {outbox_default} PARTITION OF {outbox} DEFAULT WITH (%s\n);\n", options)
	text.WriteString(rest)
	return text.String(), nil
}
