package main

import (
	"context"
	"fmt"
	"strings"
)

const (
	lastingRounds  = 10
	lastingCounted = 3 // the last rounds, which count
	// lastingMost is the maximum number of rounds, including repeated ones.
	lastingMost = lastingRounds + lastingCounted
)

// lasting is a side whose rounds continue in the same tables, for a row that watches how these degrade. Its number of
// rounds does not depend on -rounds, and only the last rounds count.
type lasting interface {
	// begin is called before the first round of any side. ctx is valid until close.
	begin(ctx context.Context) error
	round(ctx context.Context) (measured, error)
	// end is called after the last round of all sides, and checks the row's other requirements. Its value does not
	// count.
	end(ctx context.Context) (measured, error)
	// close is called even if something failed, including begin.
	close()
}

// end adds the findings of a lasting side besides its rounds.
func (b *bench) end(ctx context.Context, s *series) error {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	m, err := s.side.lasting.end(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", s.side.name, err)
	}
	b.progress("%-24s ends%s", s.side.name, dotted(append(m.facts, m.broken)))
	m.facts = []string{strings.Join(append([]string{"rounds " + numbers(s.all)}, m.facts...), "; ")}
	s.remember(m)
	return nil
}

func numbers(values []float64) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = number(v)
	}
	return strings.Join(texts, " ")
}
