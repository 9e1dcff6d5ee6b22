package services

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asHelper makes this test binary a process that only starts servers; see TestDeathOfParent.
const asHelper = "SERVICES_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(asHelper) != "" {
		os.Exit(helper())
	}
	stop := StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for the condition to become true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// wantGone checks that process and folder of a closed daemon are gone.
func wantGone(t *testing.T, d *daemon) {
	t.Helper()
	if d.process.alive() {
		t.Errorf("%s: process %d still runs", d.name, d.process.cmd.Process.Pid)
	}
	wantNoFolder(t, d.folder)
}

func wantNoFolder(t *testing.T, f *folder) {
	t.Helper()
	if _, err := os.Stat(f.root); !os.IsNotExist(err) {
		t.Errorf("folder %s is still there (%v)", f.root, err)
	}
}
