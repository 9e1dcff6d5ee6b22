// Package libraries shows that libraries which users already have work with an outbox: migration tools and libraries
// that write SQL. It is a separate package because they take longer to compile than its tests take to run.
package libraries
