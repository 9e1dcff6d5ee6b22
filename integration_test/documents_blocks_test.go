package integration_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const rootModule = "github.com/millrace-go/watermill-outbox"

// imported maps package names in the documents to import paths.
var imported = map[string]string{
	"context": "context", "sql": "database/sql", "json": "encoding/json", "errors": "errors", "http": "net/http",
	"net": "net", "os": "os",
	"filepath": "path/filepath", "strings": "strings", "time": "time",
	"watermill": "github.com/ThreeDotsLabs/watermill", "message": "github.com/ThreeDotsLabs/watermill/message",
	"cqrs":         "github.com/ThreeDotsLabs/watermill/components/cqrs",
	"requestreply": "github.com/ThreeDotsLabs/watermill/components/requestreply",
	"delay":        "github.com/ThreeDotsLabs/watermill/components/delay",
	"requeuer":     "github.com/ThreeDotsLabs/watermill/components/requeuer",
	"wmmiddleware": "github.com/ThreeDotsLabs/watermill/message/router/middleware",
	"prometheus":   "github.com/prometheus/client_golang/prometheus",
	"outbox":       rootModule, "outboxmw": rootModule + "/middleware", "forwarder": rootModule + "/forwarder",
	"fleet":  rootModule + "/fleet",
	"schema": rootModule + "/schema",
	"queue":  rootModule + "/queue", "idempotency": rootModule + "/idempotency", "admin": rootModule + "/admin",
	"ui": rootModule + "/admin/ui", "move": rootModule + "/move",
	"gorm": "gorm.io/gorm", "pgx": "github.com/jackc/pgx/v5",
	"kafka": rootModule + "/kafka", "wmkafka": "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka",
	"observe": rootModule + "/observe", "prom": rootModule + "/observe/prom", "otel": rootModule + "/observe/otel",
	"amqp": rootModule + "/amqp", "nats": rootModule + "/nats", "outboxtest": rootModule + "/outboxtest",
	"natsgo": "github.com/nats-io/nats.go", "jetstream": "github.com/nats-io/nats.go/jetstream",
	"redis": rootModule + "/redis", "goredis": "github.com/redis/go-redis/v9",
	"redisstream": "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream",
	"wmamqp":      "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp",
}

// TestDocumentsCompile compiles all Go in the documents with the declarations of testdata/blocks/given.go. Whole
// programs and tests have separate tests (TestReadmeProgram of internal/testing/docs, TestGuide of outboxtest).
func TestDocumentsCompile(t *testing.T) {
	t.Parallel()
	dir, at, n := t.TempDir(), filepath.Join("testdata", "blocks"), 0
	here, err := filepath.Abs(at)
	require.NoError(t, err)
	replace := map[string]string{}
	for page, content := range documents(t) {
		for _, found := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatchIndex(content, -1) {
			block := content[found[2]:found[3]]
			if strings.HasPrefix(block, "package ") || strings.HasPrefix(block, "func Test") {
				continue
			}
			n++
			name := fmt.Sprintf("block%d.go", n)
			source := compilable(t, n, block, fmt.Sprintf("%s:%d", page, strings.Count(content[:found[2]], "\n")+1))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(source), 0o644))
			replace[filepath.Join(here, name)] = filepath.Join(dir, name)
		}
	}
	require.Greater(t, n, 14)
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	args := append([]string{"build", "-overlay", filepath.Join(dir, "overlay.json")}, raceFlag()...)
	out, err := exec.CommandContext(t.Context(), "go", append(args, "./"+filepath.ToSlash(at))...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// compilable makes a file of a block. Declarations in the block count as used, and compiler errors have the line of the
// page.
func compilable(t *testing.T, n int, block, line string) string {
	t.Helper()
	source := fmt.Sprintf("func block%d() {\n//line %s\n%s", n, line, block)
	file, err := parser.ParseFile(token.NewFileSet(), "", "package blocks\n"+source+"}\n", 0)
	require.NoError(t, err, line)
	packages, declared := map[string]bool{}, []string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && imported[x.Name] != "" {
				packages[x.Name] = true
			}
		}
		return true
	})
	for _, s := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, ok := s.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				if name := left.(*ast.Ident).Name; name != "_" {
					declared = append(declared, name)
				}
			}
		}
	}
	imports := ""
	for name := range packages {
		imports += fmt.Sprintf("import %s %q\n", name, imported[name])
	}
	slices.Sort(declared)
	used := ""
	for _, name := range slices.Compact(declared) {
		used += "_ = " + name + "\n"
	}
	return "package blocks\n" + imports + source + used + "}\n"
}

// raceFlag is -race if this test was built with it: then its imports were as well.
func raceFlag() []string {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return []string{"-race"}
	}
	return nil
}
