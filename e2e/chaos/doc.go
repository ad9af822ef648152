// Package chaos kills processes and judges the streams that remain.
//
// The test package runs its own test binary again as the children. So the killed program is always
// the compiled one, with the race detector if that is on, and no second binary has to be built or
// found. A round is a broker with its data folder, publishers, a group of consumers and a group of
// transactional processors, each in its own process. A schedule, drawn from the round's seed, ends
// processes with SIGKILL or SIGTERM and starts them again. Children write each action to a journal
// before they do it. A SIGKILL loses no line, because the page cache survives. The judge then
// compares journals and streams.
//
// A round of the gateway has a broker, a Redis, two gateways and senders that publish over HTTP;
// see door_plan_test.go. A round of the clock has a broker, a Redis and two controllers; see
// clock_plan_test.go.
//
// A round of triggers has a broker and three dispatchers. Their subscribers are a sink in the
// test's own process, which draws its answers from the seed and records the requests; see
// triggers_rules_test.go.
//
// A round of scorers has a broker, a Redis, an object store and three scorers. Meanwhile the test
// publishes, registers versions and changes champions. An answer of a model identifies the model
// and the version for the judge; see scorers_model_test.go. A soak of scorers, which needs
// TIDEMILL_SOAK_MINUTES, kills no process and watches for growth.
//
// A seed determines when each process ends, but not how the processes' requests interleave. To find
// a failure again, run its seed a few times.
//
//	TIDEMILL_CHAOS_ROUNDS=1000 TIDEMILL_CHAOS_SEED=1 go test -timeout 0 ./e2e/chaos
//
// TIDEMILL_CHAOS_AT_ONCE is the number of rounds at a time, two by default. TIDEMILL_CHAOS_KEEP
// keeps the folders of rounds without faults.
package chaos
