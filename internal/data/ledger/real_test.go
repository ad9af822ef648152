//go:build real && unix

package ledger_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/electleaders"

	"tidemill.dev"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/embedded"
)

// realWorld has the laptop's Kafka and a redis-server.
func realWorld(t testing.TB, partitions int) *world {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return worldOn(t, s.Kafka(), realRedis(t), partitions)
}

// The tests of this package pass on a redis-server too. It is the Redis of all worlds but those whose test
// controls the laptop's Redis.
func TestRealSuiteOnRedisServer(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must(t, err)
	suite := exec.CommandContext(t.Context(), self, "-test.skip=^TestReal")
	suite.Env = append(os.Environ(), onRedisServer+"=1")
	if out, err := suite.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRealRedisHoldsThePlainFold(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { propertyRound(realWorld(t, 1+int(seed)), seed, 300) })
	}
}

func TestRealRedisLosesAKey(t *testing.T) { redisLosesAKey(t, realWorld(t, 2), 1) }

// A Redis that evicts keys is refused. Until this is noticed each answer is right, or it is that the
// ledger catches up. When Redis stops evicting, the ledger goes on by itself.
func TestRealRedisThatEvicts(t *testing.T) {
	t.Parallel()
	w := realWorld(t, 2)
	l := w.open()
	variedHistory(w, l)
	all, want := w.modelOf(), answers(t.Context(), l)
	for name, value := range map[string]string{"maxmemory": "8mb", "maxmemory-policy": "allkeys-lru"} {
		must(t, w.redis.ConfigSet(t.Context(), name, value).Err())
	}
	filler := strings.Repeat("x", 1<<16)
	for i := 0; !l.Status().Stopped; i++ { // it stops once it has noticed that a key is lost
		must(t, w.redis.Set(t.Context(), fmt.Sprint("filler-", i), filler, 0).Err())
		for question, answer := range answers(t.Context(), l) {
			if answer != want[question] {
				t.Fatalf("after %d fillers, %s is\n%s, not\n%s", i, question, answer, want[question])
			}
		}
	}
	w.stopped(l, "maxmemory-policy is allkeys-lru")
	w.stopped(w.openWith(w.options()), "maxmemory-policy is allkeys-lru")
	must(t, w.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
	waitUntil(t, l, "it does not answer again", func() bool { return len(answers(t.Context(), l)) == len(want) })
	w.waitSettled(l)
	w.checkSame(all)
}

// A server without the newest facts becomes the leader, because the only server that has them is
// killed. The ledger forgets these facts, and new ones count.
func TestRealUncleanElection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	k, err := realservers.StartKafka(ctx, realservers.KafkaOptions{Brokers: 3,
		Config: map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}})
	must(t, err)
	t.Cleanup(func() { must(t, k.Close()) })
	first, second := k.Nodes()[0], k.Nodes()[1] // the third is only a controller, so that two are always left
	factsOn(t, k.Addr(), 1, 2)
	w, s := worldOn(t, k.Addr(), realRedis(t), 1), &script{}
	l := w.open()
	w.requests(s, "same", 0, 5)
	must(t, second.Kill())
	w.requests(s, "old", 0, 10)
	w.waitSettled(l)
	must(t, first.Kill())
	must(t, second.Start())
	must(t, k.Ready(ctx))
	w.electUnclean()
	w.requests(s, "new", 0, 3)
	w.knows(l, "new", 3, "old")
	must(t, first.Start())
	must(t, k.Ready(ctx))
	w.requests(s, "new", 3, 12)
	w.knows(l, "new", 12, "old")
	w.knows(l, "same", 5, "old")
}

// electUnclean makes a server the leader of the facts although it lacks some. It waits until the server
// can be elected.
func (w *world) electUnclean() {
	w.t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	req := &electleaders.Request{ElectionType: 1, TimeoutMs: 10_000,
		TopicPartitions: []electleaders.RequestTopicPartitions{{Topic: w.names.Topic(tidemill.StreamFacts), PartitionIDs: []int32{0}}}}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		res, err := transport.RoundTrip(w.t.Context(), kafka.TCP(strings.Split(w.address, ",")...), req)
		if err == nil {
			if all := res.(*electleaders.Response).ReplicaElectionResults; len(all) == 1 && all[0].PartitionResults[0].ErrorCode == 0 {
				return
			}
		}
		select {
		case <-tick.C:
		case <-w.t.Context().Done():
			w.t.Fatalf("no leader was elected: %+v, %v", res, err)
		}
	}
}

// factsOn creates the stream of facts with one partition on some servers.
func factsOn(t *testing.T, address string, servers ...int) {
	t.Helper()
	names, err := tidemill.NewNames("test")
	must(t, err)
	topic := names.Topic(tidemill.StreamFacts)
	client := kafka.Client{Addr: kafka.TCP(strings.Split(address, ",")...)}
	created, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: -1, ReplicationFactor: -1,
		ReplicaAssignments: []kafka.ReplicaAssignment{{Partition: 0, Replicas: servers}}}}})
	must(t, err)
	must(t, created.Errors[topic])
}

func BenchmarkRealRefill(b *testing.B) { refill(b, realWorld(b, 24)) }

func BenchmarkRealRunsAtOnce(b *testing.B) { runsAtOnce(b, realWorld(b, 24), 64) }

func BenchmarkRealClaim(b *testing.B) {
	for _, waiting := range []int{100, 100_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) { claims(b, realWorld(b, 24), waiting) })
	}
}
