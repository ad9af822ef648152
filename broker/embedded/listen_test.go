package embedded

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/e2e/sim/vnet"
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

// Another user of the machine opened as many connections as it liked, each with half of a login. They stayed
// until that user closed them.
func TestStrangersAreLimited(t *testing.T) {
	for name, c := range map[string]struct {
		half  string // half of a login
		logIn func(t *testing.T, s *Servers, password string, conn net.Conn) error
		ask   func(conn net.Conn) error
		at    func(*Servers) string
	}{
		"kafka": {"\x00\x00\x0f\xff\x00\x24\x00\x01", func(t *testing.T, s *Servers, _ string, conn net.Conn) error {
			return s.inside.logIn(t.Context(), conn)
		},
			func(conn net.Conn) error {
				return roundTrip(conn, kmsg.NewPtrMetadataRequest(), kmsg.NewPtrMetadataResponse())
			},
			(*Servers).Kafka},
		"redis": {"*2\r\n$4\r\nAUTH\r\n$200\r\n", func(_ *testing.T, _ *Servers, password string, conn net.Conn) error {
			return expect(conn, command("AUTH", password), "+OK\r\n")
		}, func(conn net.Conn) error { return expect(conn, command("PING"), "+PONG\r\n") }, (*Servers).Redis},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := vnet.New(vnet.Options{}).Host("laptop")
				o := Options{Dir: t.TempDir(), Passwords: true, Network: host.Network()}
				secret, err := o.withUsers()
				must(t, err)
				s, err := Start(t.Context(), o)
				must(t, err)
				defer s.Close()
				dial := func() net.Conn {
					conn, err := host.Dial(t.Context(), "tcp", c.at(s))
					must(t, err)
					return conn
				}
				known := dial()
				defer known.Close()
				must(t, c.logIn(t, s, secret.redis.Reveal(), known))

				var all []net.Conn
				flood := func() {
					for range 3 * maxStrangers {
						conn := dial()
						_, _ = io.WriteString(conn, c.half) // the server may have closed it
						all = append(all, conn)
					}
					synctest.Wait()
				}
				flood()
				if n := stillOpen(all); n != maxStrangers {
					t.Errorf("%d of %d strangers are connected, want %d", n, len(all), maxStrangers)
				}
				time.Sleep(strangerAge)
				late := dial()
				defer late.Close()
				if err := c.logIn(t, s, secret.redis.Reveal(), late); err != nil {
					t.Errorf("a client cannot log in while strangers wait: %v", err)
				}
				flood()
				if n := stillOpen(all); n != maxStrangers {
					t.Errorf("after more of them %d strangers are connected, want %d", n, maxStrangers)
				}
				time.Sleep(loginWithin)
				synctest.Wait()
				if n := stillOpen(all); n != 0 {
					t.Errorf("%d strangers are connected after the time for a login", n)
				}
				for name, conn := range map[string]net.Conn{"before": known, "after": late} {
					if err := c.ask(conn); err != nil {
						t.Errorf("a client that logged in %s the strangers is not served any more: %v", name, err)
					}
				}
			})
		})
	}
}

// expect sends a text, and reads its answer.
func expect(conn net.Conn, text, want string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		return errors.Join(errors.New("the answer is "+string(got)), err)
	}
	return nil
}

// stillOpen returns the number of connections that the server has not closed.
func stillOpen(all []net.Conn) (n int) {
	for _, conn := range all {
		_ = conn.SetReadDeadline(time.Now().Add(time.Nanosecond)) // a connection in memory does not fail
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			n++
		}
	}
	return n
}
