module github.com/millrace-go/watermill-outbox/examples

go 1.25.0
