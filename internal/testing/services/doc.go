// Package services starts servers for examples, integration tests and benchmarks: Postgres, Kafka, NATS, RabbitMQ and
// Redis.
//
// [StartPostgres], [StartKafka] and [StartNATS] start one server: Postgres from the machine's binaries or downloaded
// ones, Kafka on the machine's Java with jars from Maven, NATS inside this process. [StartRabbitMQ] and [StartRedis]
// run the machine's program.
//
// [StartKafkaCluster] and [StartNATSCluster] start three servers, each in its own process. [StartNATSProcess] starts
// one NATS server that can be killed.
//
// A Start function returns an error that wraps [ErrNotInstalled] if the machine lacks its program. A test is then
// skipped, unless [InCI] is true.
//
// A server is returned after it has replied to a real request. It listens on 127.0.0.1 and a free port, and keeps its
// data in a temporary folder under os.TempDir.
//
// # Life of a server
//
// Stop ends a server gracefully and Kill ends it like a crash; both keep its data. Restart starts it again on the same
// port with the same data. Close ends it for good and removes its folder.
//
// A [Node] of a cluster can also be frozen, and isolated from the other nodes.
//
// The context given to a Start function limits the start, not the life of the server. [StopAll] closes all servers that
// are still running, and [StopOnSignal] does so on an interrupt as well, so a TestMain looks like this:
//
//	stop := services.StopOnSignal()
//	code := m.Run()
//	stop()
//	os.Exit(code)
//
// If this process is killed, Linux ends the server processes with it; on other systems they stay. The next run that
// starts a server removes folders left by such a run.
//
// # Environment
//
//   - OUTBOX_POSTGRES_BIN: folder with initdb and postgres, instead of looking for one.
//   - OUTBOX_POSTGRES_VERSION: full version such as 17.5.0, downloaded instead of using the machine's.
//   - CI: true makes tests fail if a program is not installed.
//   - JAVA_HOME: tried before the java in PATH.
//   - TMPDIR: folder for data; on a memory file system syncing is free and benchmarks look better.
package services
