package docs

import (
	"os"
	"regexp"
	"testing"
)

// TestLayout checks the promised layout: the files at the top level, and the module's dependencies. The Publisher and
// its Decorator are in adapter.go.
func TestLayout(t *testing.T) {
	for _, name := range []string{
		"go.mod", "go.sum", "adapter.go", "middleware/doc.go", "forwarder/doc.go", "schema/doc.go", "examples/kafka",
		"examples/nats",
		"integration_test", "Makefile",
	} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%s is missing at the top level: %v", name, err)
		}
	}
	adapter := read(t, "adapter.go")
	for _, what := range []string{`type Publisher `, `func NewPublisher\(`, `func Decorator\(`} {
		if !regexp.MustCompile(`(?m)^` + what).MatchString(adapter) {
			t.Errorf("adapter.go has no %s", what)
		}
	}
	module := read(t, "go.mod")
	for _, path := range []string{
		"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v3",
		"github.com/ThreeDotsLabs/watermill-kafka/v3",
		"github.com/jackc/pgx/v5",
	} {
		if !regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(path) + ` v[^/]*$`).MatchString(module) {
			t.Errorf("go.mod does not require %s directly", path)
		}
	}
}

func read(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
