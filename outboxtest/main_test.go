package outboxtest_test

import (
	"context"
	"testing"
)

// t stands for the *testing.T that the tests of users have and examples have not.
var t testing.TB = exampleT{}

type exampleT struct{ testing.TB }

func (exampleT) Helper()                  {}
func (exampleT) Cleanup(func())           {}
func (exampleT) Context() context.Context { return context.Background() }
func (exampleT) Fatal(args ...any)        { panic(args) }

func (exampleT) Fatalf(format string, args ...any) { panic([]any{format, args}) }
