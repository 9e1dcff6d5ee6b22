// Package admin looks at the tables of an outbox and repairs them: what an operator needs at three in the morning.
package admin
