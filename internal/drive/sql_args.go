package drive

import (
	"fmt"
	"strconv"
	"strings"
)

// ArrayArgs writes slices as Postgres array literals, which every driver can send as text.
func ArrayArgs(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case []int64:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e int64) { b.WriteString(strconv.FormatInt(e, 10)) })
		case []float64:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e float64) { b.WriteString(strconv.FormatFloat(e, 'g', -1, 64)) })
		case []bool:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e bool) { b.WriteString(strconv.FormatBool(e)) })
		case []string:
			out[i] = arrayLiteral(v, writeQuoted)
		case [][]byte:
			out[i] = arrayLiteral(v, writeBytes)
		default:
			out[i] = a
		}
	}
	return out
}

func arrayLiteral[T any](elements []T, write func(*strings.Builder, T)) any {
	if elements == nil {
		return nil
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		write(&b, e)
	}
	b.WriteByte('}')
	return b.String()
}

func writeBytes(b *strings.Builder, e []byte) {
	if e == nil {
		b.WriteString("NULL")
		return
	}
	fmt.Fprintf(b, `"\\x%x"`, e)
}

func writeQuoted(b *strings.Builder, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
}
