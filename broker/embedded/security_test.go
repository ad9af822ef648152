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
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
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
