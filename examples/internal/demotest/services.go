package demotest

import (
	"fmt"
	"os"
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// Services is TestMain of an example whose tests start servers: these end with the tests, even if interrupted.
func Services(m *testing.M, main func()) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	stop := services.StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	os.Exit(code)
}
