// Package realservers starts Apache Kafka and Redis themselves on loopback, for
// the tests that what we embed is held against. It needs java and redis-server,
// which .ci/real-servers-install installs, and gets Kafka's jars from Maven
// Central with mvn, once. Tests that use it carry the build tag real.
//
// It ends only processes that it started, and these end with this process.
package realservers
