package embedded

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/e2e/sim/vnet"
)

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
