package demotest

import (
	"fmt"
	"os"
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// Services is TestMain of tests that start servers: they end with the tests, also when those are interrupted.
func Services(m *testing.M) {
	stop := services.StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	os.Exit(code)
}
