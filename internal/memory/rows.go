package memory

import (
	"database/sql"
	"fmt"
	"reflect"
	"slices"
)

// rows are the result of a query.
type rows struct {
	list [][]any
	row  []any
}

func (r *rows) Next() bool {
	if len(r.list) == 0 {
		return false
	}
	r.row, r.list = r.list[0], r.list[1:]
	return true
}

func (r *rows) Err() error   { return nil }
func (r *rows) Close() error { r.list = nil; return nil }

func (r *rows) Scan(dest ...any) error {
	if len(dest) != len(r.row) {
		return fmt.Errorf("outboxtest: %d columns are scanned into %d values", len(r.row), len(dest))
	}
	for i, d := range dest {
		if err := assign(reflect.ValueOf(d).Elem(), r.row[i]); err != nil {
			return fmt.Errorf("outboxtest: column %d: %w", i, err)
		}
	}
	return nil
}

// assign converts as drivers do: NULL to nil, a value to a pointer to it, text to bytes and a number to one of another
// type.
func assign(dest reflect.Value, v any) error {
	if to, ok := dest.Addr().Interface().(sql.Scanner); ok {
		return to.Scan(v)
	}
	if v == nil {
		if dest.Kind() != reflect.Pointer && dest.Kind() != reflect.Slice {
			return fmt.Errorf("NULL does not fit into %s", dest.Type())
		}
		dest.SetZero()
		return nil
	}
	if b, ok := v.([]byte); ok {
		v = slices.Clone(b)
	}
	from := reflect.ValueOf(v)
	switch {
	case dest.Kind() == reflect.Pointer && dest.Type().Elem() == from.Type():
		dest.Set(reflect.New(from.Type()))
		dest.Elem().Set(from)
	case from.Type().AssignableTo(dest.Type()):
		dest.Set(from)
	case from.CanInt() && (dest.CanInt() || dest.CanFloat()), from.Kind() == reflect.String &&
		dest.Type() == reflect.TypeFor[[]byte]():
		dest.Set(from.Convert(dest.Type()))
	default:
		return fmt.Errorf("%s does not fit into %s", from.Type(), dest.Type())
	}
	return nil
}
