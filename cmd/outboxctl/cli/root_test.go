package cli

import (
	"testing"
)

func TestUnknownCommandsNameTheOneThatWasMeant(t *testing.T) {
	for args, want := range map[string]string{
		"docter":  "did you mean outboxctl doctor?",
		"requeue": "did you mean outboxctl inbox requeue, or outboxctl outbox requeue, or outboxctl queue requeue?",
		"xyz":     "see outboxctl --help",
	} {
		root := new(app).root()
		if got := cure(root, []string{args}); got != want {
			t.Errorf("outboxctl %s: %s, want %s", args, got, want)
		}
	}
}
