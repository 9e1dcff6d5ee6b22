package forwarder

import "testing"

// TestGenerationOf: the generation is what metadata->>'outbox_generation' is for the server.
func TestGenerationOf(t *testing.T) {
	for metadata, want := range map[string]string{
		`{}`:                           "",
		`{"outbox_generation": null}`:  "",
		`{"outbox_generation": "2"}`:   "2",
		`{"outbox_generation": 2}`:     "2",
		`{"outbox_generation": "a.2"}`: "a.2",
		`{"Outbox_generation": "2", "note": "not outbox_generation"}`: "",
		`"outbox_generation"`: "",
	} {
		if got := generationOf([]byte(metadata)); got != want {
			t.Errorf("%s: %q, want %q", metadata, got, want)
		}
	}
}
