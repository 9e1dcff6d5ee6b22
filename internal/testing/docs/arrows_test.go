package docs

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestPublishersCompileNoDoctor: programs that only publish to a broker do not compile the code that inspects an
// outbox, and package broker, the interface for checking a broker, does not depend on the rest of the module.
func TestPublishersCompileNoDoctor(t *testing.T) {
	t.Parallel()
	const module = "github.com/millrace-go/watermill-outbox"
	for dir, without := range map[string][]string{
		"kafka":  {module + "/admin", module + "/queue", module + "/middleware"},
		"nats":   {module + "/admin", module + "/queue", module + "/middleware", "github.com/IBM/sarama"},
		"broker": {module},
	} {
		list := exec.Command("go", "list", "-deps", ".")
		list.Dir = dir
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		packages := strings.Fields(string(out))
		if !slices.Contains(packages, module+"/"+dir) {
			t.Fatalf("%s is not among the needed declarations: %v", dir, packages)
		}
		for _, p := range without {
			if slices.Contains(packages, p) {
				t.Errorf("%s compiles %s", dir, p)
			}
		}
	}
}
