// Package libraries shows that the libraries which users already have work with an outbox: tools that run migrations,
// and those that write SQL. It is a package of its own because they take longer to compile than its tests take to run.
package libraries
