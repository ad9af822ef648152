// Package realservers starts Apache Kafka and Redis themselves, on loopback
// unless told otherwise, for the tests that what we embed is held against, and
// finds the CloudEvents libraries of other languages. It needs java,
// redis-server, python3 and node, which .ci/real-servers-install installs, and
// gets Kafka's jars from Maven Central and the libraries from PyPI and npm,
// once. Tests that use it carry the build tag real or cluster; make bench uses
// the Redis where there is one.
//
// It ends only processes that it started, and these end with this process.
package realservers
