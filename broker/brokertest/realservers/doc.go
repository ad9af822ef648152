// Package realservers starts Apache Kafka, Redis, Prometheus and an S3 server on loopback for tests,
// and finds the CloudEvents libraries of other languages. It needs java, redis-server, prometheus,
// python3 and node, which .ci/real-servers-install installs. It downloads Kafka's jars
// from Maven Central and the libraries from PyPI and npm, once. Tests that use it have
// the build tag real or cluster; make bench uses its Redis if there is one.
//
// It ends only processes that it started, and these end with this process.
package realservers
