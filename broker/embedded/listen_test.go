package embedded

import (
	"net"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
)

func TestCheckHost(t *testing.T) {
	for _, c := range []struct {
		addr   string
		public bool
		want   string // text that the error contains; empty for no error
	}{
		{"127.0.0.1:0", false, ""},
		{"[::1]:9092", false, ""},
		{"localhost:9092", false, ""},
		{"192.0.2.7:9092", true, ""},
		{"192.0.2.7:9092", false, "not a loopback"},
		{":9092", false, "not a loopback"},
		{"0.0.0.0:9092", false, "not a loopback"},
		{"0.0.0.0:9092", true, "no interface"},
		{":9092", true, "no interface"},
		{"9092", false, "host:port"},
	} {
		err := checkHost(c.addr, c.public)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s public %v: %v, want %q", c.addr, c.public, err, c.want)
		}
	}
}

func TestRefusesToListenBeyondLoopback(t *testing.T) {
	for _, o := range []Options{{Kafka: "0.0.0.0:0"}, {Redis: "0.0.0.0:0"}} {
		if _, err := Start(t.Context(), o); err == nil {
			t.Errorf("%+v started", o)
		}
	}
}

func TestFixedPortsAreKeptAcrossStarts(t *testing.T) {
	s := start(t, Options{})
	o := Options{Kafka: s.Kafka(), Redis: s.Redis()}
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), s.Kafka()) {
		t.Errorf("a taken port shall be named: %v", err)
	}
	must(t, s.Close())
	again := start(t, o)
	if again.Kafka() != o.Kafka || again.Redis() != o.Redis {
		t.Errorf("listens on %s and %s, told %s and %s", again.Kafka(), again.Redis(), o.Kafka, o.Redis)
	}
}

func TestSeveralBrokers(t *testing.T) {
	s := start(t, Options{Brokers: 3})
	c := kafkaClient(t, s.Kafka())
	must(t, createTopic(t, c, "a"))
	m, err := c.Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{"a"}})
	must(t, err)
	if len(m.Brokers) != 3 {
		t.Errorf("%d brokers", len(m.Brokers))
	}
	must(t, s.Cluster().MoveTopicPartition("a", 0, 2))
	if leader := s.Cluster().LeaderFor("a", 0); leader != 2 {
		t.Errorf("broker %d leads", leader)
	}
}

// A browser that connects to the port must not end the process.
func TestStrangersAreShownOut(t *testing.T) {
	s := start(t, Options{})
	for _, hello := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"\xff\xff\xff\xff",
		"\x00\x00\x00\x00",
		"\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x00\x00\x00",
		"\x00\x00\x00\x02\x00\x12",
	} {
		conn, err := net.Dial("tcp", s.Kafka())
		must(t, err)
		_, err = conn.Write([]byte(hello))
		must(t, err)
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%q was answered with %d bytes", hello, n)
		}
		must(t, conn.Close())
	}
	must(t, createTopic(t, kafkaClient(t, s.Kafka()), "alive"))
}

// The guard finds the same frames however the bytes are split into reads.
func FuzzFrameGuard(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x04\x00\x12\x00\x03\x00\x00\x00\x02\x00\x00"), uint8(3))
	f.Add([]byte("GET / HTTP/1.1"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		var whole, pieces frameGuard
		want := whole.check(b)
		var got error
		for step := int(cut)%7 + 1; len(b) > 0 && got == nil; b = b[min(step, len(b)):] {
			got = pieces.check(b[:min(step, len(b))])
		}
		if (want == nil) != (got == nil) {
			t.Fatalf("at once: %v, in pieces: %v", want, got)
		}
	})
}
