package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTLSAndUsers(t *testing.T) {
	cert, pool := selfSigned(t)
	dir := t.TempDir()
	o := Options{Dir: dir, TLS: &tls.Config{Certificates: []tls.Certificate{cert}},
		Users: []User{{Mechanism: "PLAIN", Name: "ada", Password: "first"}}}
	s := start(t, o)
	must(t, ask(t, s.Kafka(), pool, "first"))
	if ask(t, s.Kafka(), pool, "wrong") == nil {
		t.Error("a wrong password was let in")
	}
	must(t, s.Close())

	o.Users[0].Password = "second" // the users of this start override the stored ones
	s = start(t, o)
	must(t, ask(t, s.Kafka(), pool, "second"))
	if ask(t, s.Kafka(), pool, "first") == nil {
		t.Error("the old password was let in")
	}
}

func ask(t *testing.T, addr string, pool *x509.CertPool, password string) error {
	t.Helper()
	tr := &kafka.Transport{TLS: &tls.Config{RootCAs: pool}, SASL: plain.Mechanism{Username: "ada", Password: password}}
	defer tr.CloseIdleConnections()
	_, err := (&kafka.Client{Addr: kafka.TCP(addr), Transport: tr, Timeout: waitLimit}).
		Metadata(t.Context(), &kafka.MetadataRequest{})
	return err
}

func TestPasswordIsNotPrinted(t *testing.T) {
	o := Options{Users: []User{{Mechanism: "PLAIN", Name: "ada", Password: "hunter2"}}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, o); strings.Contains(s, "hunter2") {
			t.Errorf("%s prints it: %s", format, s)
		}
	}
}

// Another user of the machine who cannot read the data folder gets nothing from the two ports.
func TestPasswords(t *testing.T) {
	o := Options{Dir: t.TempDir(), Passwords: true}
	s := start(t, o)
	if _, err := kafkaClient(t, s.Kafka()).Metadata(t.Context(), &kafka.MetadataRequest{}); err == nil {
		t.Error("Kafka answers a client without a password")
	}
	if err := createTopicAs(t, s.Kafka(), "guess"); err == nil {
		t.Error("Kafka answers a client with a wrong password")
	}
	for _, user := range []string{"", "nobody", UserName, "tidemill-inside"} {
		if logInPlainly(t, s.Kafka(), user, "") == nil {
			t.Errorf("Kafka answers %q with an empty password", user)
		}
	}
	stranger := redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer stranger.Close()
	for _, command := range [][]any{{"ping"}, {"set", "k", "v"}, {"get", "k"}, {"keys", "*"}, {"eval", "return 1", 0}, {"flushall"},
		{"subscribe", "c"}, {"multi"}, {"select", 1}, {"xadd", "s", "*", "a", "b"}} {
		if err := stranger.Do(t.Context(), command...).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
			t.Errorf("Redis answers %v without a password: %v", command, err)
		}
	}

	secret := map[string]string{}
	for _, path := range []string{KafkaPasswordFile(o.Dir), RedisPasswordFile(o.Dir)} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has permissions %v", path, info.Mode())
		}
		text, err := os.ReadFile(path)
		must(t, err)
		secret[path] = strings.TrimSpace(string(text))
	}
	if info, err := os.Stat(kafkaDir(o.Dir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("Kafka's folder: %v, %v", info.Mode(), err)
	}
	known := func() {
		must(t, createTopicAs(t, s.Kafka(), secret[KafkaPasswordFile(o.Dir)]))
		friend := redis.NewClient(&redis.Options{Addr: s.Redis(), Password: secret[RedisPasswordFile(o.Dir)]})
		defer friend.Close()
		must(t, friend.Ping(t.Context()).Err())
	}
	known()
	must(t, s.leaveGroup(joiner{"g", "gone"})) // as its own user
	must(t, s.Close())
	s = start(t, o)
	known() // the passwords stay
}

// With PLAIN, an empty password is wrong for every user. This was an attack.
func TestEmptyPasswords(t *testing.T) {
	s := start(t, Options{Users: []User{{Mechanism: "PLAIN", Name: "ada", Password: "pw"}}})
	must(t, logInPlainly(t, s.Kafka(), "ada", "pw"))
	for _, user := range []string{"", "nobody", "ada", UserName, "tidemill-inside"} {
		if logInPlainly(t, s.Kafka(), user, "") == nil {
			t.Errorf("Kafka answers %q with an empty password", user)
		}
	}
}

// A client that has not logged in takes little of the server's memory.
func TestFramesBeforeTheLogin(t *testing.T) {
	s := start(t, Options{Dir: t.TempDir(), Passwords: true})
	for name, frame := range map[string][]byte{
		"a long login":    {0, 0, 16, 1, 0, byte(keyAuthenticate), 0, 0},
		"another request": {0, 0, 0, 100, 0, byte(kmsg.Metadata), 0, 0},
		"a long request":  {5, 0, 0, 0, 0, byte(kmsg.Produce), 0, 0},
	} {
		var g frameGuard
		g.stranger.Store(true)
		if g.check(frame) == nil {
			t.Errorf("%s is passed", name)
		}
		if got := tell(t, s.Kafka(), string(frame)); got != "" {
			t.Errorf("%s is answered by %q", name, got)
		}
	}
	m, err := scram.Mechanism(scram.SHA256, s.inside.Name, s.inside.Password)
	must(t, err)
	tr := &kafka.Transport{SASL: m}
	defer tr.CloseIdleConnections()
	c := &kafka.Client{Addr: kafka.TCP(s.Kafka()), Transport: tr, Timeout: waitLimit}
	must(t, createTopic(t, c, "a"))
	if _, err := produce(t.Context(), c, "a", strings.Repeat("x", 2*maxLogin)); err != nil {
		t.Error("after the login:", err)
	}
}

func logInPlainly(t *testing.T, addr, user, password string) error {
	t.Helper()
	tr := &kafka.Transport{SASL: plain.Mechanism{Username: user, Password: password}}
	defer tr.CloseIdleConnections()
	_, err := (&kafka.Client{Addr: kafka.TCP(addr), Transport: tr, Timeout: waitLimit}).Metadata(t.Context(), &kafka.MetadataRequest{})
	return err
}

func createTopicAs(t *testing.T, addr, password string) error {
	t.Helper()
	m, err := scram.Mechanism(scram.SHA256, UserName, password)
	must(t, err)
	tr := &kafka.Transport{SASL: m}
	defer tr.CloseIdleConnections()
	_, err = (&kafka.Client{Addr: kafka.TCP(addr), Transport: tr, Timeout: waitLimit}).
		CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "a", NumPartitions: 1, ReplicationFactor: 1}}})
	return err
}

func TestAPasswordThatOthersCanReadIsRefused(t *testing.T) {
	for _, file := range []func(string) string{KafkaPasswordFile, RedisPasswordFile} {
		o := Options{Dir: t.TempDir(), Passwords: true}
		must(t, start(t, o).Close())
		must(t, os.Chmod(file(o.Dir), 0o640))
		_, err := Start(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), file(o.Dir)) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("with %s for others the start says %v", file(o.Dir), err)
		}
		must(t, os.Remove(file(o.Dir)))
		must(t, start(t, o).Close())
	}
}

// In a folder that others may write, another user could give the passwords.
func TestADataFolderThatOthersCanWriteIsRefused(t *testing.T) {
	o := Options{Dir: t.TempDir(), Passwords: true}
	must(t, os.Chmod(o.Dir, 0o777))
	for name, open := range map[string]func() error{
		"a start": func() error { _, err := Start(t.Context(), o); return err },
		"a lock":  func() error { _, err := LockFolder(o.Dir); return err },
	} {
		if err := open(); err == nil || !strings.Contains(err.Error(), "chmod go-w "+o.Dir) {
			t.Errorf("%s says %v", name, err)
		}
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
	must(t, os.Chmod(o.Dir, 0o755))
	must(t, start(t, o).Close())
}

// A folder of a start without passwords gets them, and the mending after a kill logs in.
func TestPasswordsAfterAKill(t *testing.T) {
	dir := t.TempDir()
	kill, addr := startChild(t, dir)
	must(t, createTopic(t, kafkaClient(t, addr), "a"))
	writeInTransaction(t, addr)
	kill()
	s := start(t, Options{Dir: dir, Passwords: true})
	resp := kmsg.NewPtrFetchResponse()
	must(t, askOnce(s.network, s.Kafka(), s.inside, committedFetch(1<<20), resp))
	if part := resp.Topics[0].Partitions[0]; len(part.AbortedTransactions) != 1 {
		t.Errorf("aborted are %v, want the open transaction", part.AbortedTransactions)
	}
	if _, err := os.Stat(KafkaPasswordFile(dir)); err != nil {
		t.Error(err)
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(t, err)
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
