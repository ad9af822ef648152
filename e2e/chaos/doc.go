// Package chaos kills processes and judges what is left on the streams.
//
// It is a test package that runs its own test binary again as the children, so
// that what is killed is what was just compiled, race detector included, and
// nobody has to build or find a second binary. A round is a broker with its
// data folder, publishers, a group of consumers and a group of transactional
// processors, each a process of its own; a schedule drawn from the round's
// seed ends any of them with SIGKILL or SIGTERM and starts it again. Children
// write down what they do in journals before they do it, line by line: SIGKILL
// does not lose the page cache. The judge then compares journals and streams.
//
// A round of the door has a broker, a Redis, two gateways and senders that
// publish over HTTP; see door_plan_test.go. A round of the clock has a broker, a
// Redis and two controllers; see clock_plan_test.go.
//
// A round of triggers has a broker and three dispatchers; their subscribers are
// a sink in the test's own process, which answers as its seed says and writes
// down what comes; see triggers_rules_test.go.
//
// A round of scorers has a broker, a Redis, an object store and three scorers;
// the test itself publishes, registers versions and changes champions all the
// while. Its models say by their answer which version of which model they are, so
// that the judge can tell; see scorers_model_test.go. A soak of scorers, for which
// TIDEMILL_SOAK_MINUTES has to be set, kills nobody and watches what grows.
//
// A seed fixes who is ended when, not how the processes' requests interleave:
// a failure is found again by running its seed a few times.
//
//	TIDEMILL_CHAOS_ROUNDS=1000 TIDEMILL_CHAOS_SEED=1 go test -timeout 0 ./e2e/chaos
//
// TIDEMILL_CHAOS_AT_ONCE is how many rounds run at a time, two by default;
// TIDEMILL_CHAOS_KEEP keeps the folders of rounds in which nothing was found.
package chaos
