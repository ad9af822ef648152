package broker

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"tidemill.dev"
)

const hush = "hunter2-and-more"

func fakeKafka(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	return strings.Join(fakeCluster(t, append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...).ListenAddrs(), ",")
}

func fakeCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func options(t *testing.T, addr string, s Security) Options {
	t.Helper()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	return Options{Addr: addr, Names: names, Security: s, TransactionTimeout: hostilePatience}
}

// mustReach opens a broker and sends a request through kafka-go's transport.
func mustReach(t *testing.T, addr string, s Security) {
	t.Helper()
	b, err := Open(t.Context(), options(t, addr, s))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.client.Metadata(t.Context(), &kafka.MetadataRequest{}); err != nil {
		t.Fatal(err)
	}
}

// mustRefuse opens a broker and wants an error soon that contains every text of says and not the
// secret.
func mustRefuse(t *testing.T, addr string, s Security, says ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	b, err := Open(ctx, options(t, addr, s))
	if err == nil {
		b.Close()
		t.Fatal("opened")
	}
	if ctx.Err() != nil {
		t.Errorf("took the whole of the context's time: %v", err)
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), hush) {
		t.Errorf("%q says the secret", err)
	}
}

func passwordFile(t *testing.T, password string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSASL(t *testing.T) {
	for _, mechanism := range []string{mechanismPlain, mechanismScram256, mechanismScram512} {
		t.Run(mechanism, func(t *testing.T) {
			addr := fakeKafka(t, kfake.EnableSASL(), kfake.Superuser(mechanism, "mill", hush))
			s := Security{Mechanism: mechanism, User: "mill", PasswordFile: passwordFile(t, hush)}
			mustReach(t, addr, s)
			mustRefuse(t, addr, Security{}, addr, "may want a user")
			if err := os.WriteFile(s.PasswordFile, []byte("wrong"), 0o600); err != nil {
				t.Fatal(err)
			}
			mustRefuse(t, addr, s, `"mill"`, mechanism, "check the user and the password", addr)
		})
	}
}

func TestSASLOverTLS(t *testing.T) {
	ca := newAuthority(t)
	addr := fakeKafka(t, kfake.TLS(ca.server(t, time.Now().Add(time.Hour))), kfake.EnableSASL(),
		kfake.Superuser(mechanismPlain, "mill", hush))
	s := Security{TLS: true, CAFile: ca.File, Mechanism: mechanismPlain, User: "mill", PasswordFile: passwordFile(t, hush)}
	mustReach(t, addr, s)
}

func TestRotatedPasswordIsReadByTheNextConnection(t *testing.T) {
	addr := fakeKafka(t, kfake.EnableSASL(), kfake.Superuser(mechanismScram256, "mill", hush),
		kfake.Superuser(mechanismScram512, "mill", "another"))
	s := Security{Mechanism: mechanismScram256, User: "mill", PasswordFile: passwordFile(t, hush)}
	d := &dialer{security: s}
	if err := dialOnce(t, d, addr); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.PasswordFile, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dialOnce(t, d, addr); err == nil {
		t.Fatal("the old password was used")
	}
	d.security.Mechanism = mechanismScram512
	if err := dialOnce(t, d, addr); err != nil {
		t.Fatal(err)
	}
}

func dialOnce(t *testing.T, d *dialer, addr string) error {
	t.Helper()
	conn, err := d.dial(t.Context(), "tcp", addr)
	if err == nil {
		conn.Close()
	}
	return err
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	addr := fakeKafka(t, kfake.TLS(ca.server(t, hour)))
	mustReach(t, addr, Security{TLS: true, CAFile: ca.File})
	mustReach(t, addr, Security{TLS: true, CAFile: ca.File, ServerName: "kafka"})
	mustRefuse(t, addr, Security{TLS: true, CAFile: other.File}, addr, "file of the CA")
	mustRefuse(t, addr, Security{TLS: true}, addr, "file of the CA")
	mustRefuse(t, addr, Security{TLS: true, CAFile: ca.File, ServerName: "elsewhere"}, "server name")
	mustRefuse(t, addr, Security{}, addr, "turn TLS on")
	mustRefuse(t, addr, Security{Mechanism: mechanismScram512, User: "mill", PasswordFile: passwordFile(t, hush)}, "wants TLS")

	expired := fakeKafka(t, kfake.TLS(ca.server(t, time.Now().Add(-time.Hour))))
	mustRefuse(t, expired, Security{TLS: true, CAFile: ca.File}, expired, "expired", "renew")
}

func TestTLSToAPortWithoutIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // Apache Kafka also closes after a frame that is too long
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			conn.Close()
		}
	}()
	mustRefuse(t, l.Addr().String(), Security{TLS: true}, "turn TLS off")
}

func TestMutualTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	addr := fakeKafka(t, kfake.TLS(ca.mutualTLS(t)))
	mustRefuse(t, addr, Security{TLS: true, CAFile: ca.File}, addr, "client certificate")

	certFile, keyFile := other.issue(t, "mill", hour)
	s := Security{TLS: true, CAFile: ca.File, CertFile: certFile, KeyFile: keyFile}
	mustRefuse(t, addr, s, addr, "client certificate")
	ca.issueTo(t, "mill", hour, certFile, keyFile) // rotated in place
	mustReach(t, addr, s)
}

func TestRotatedCertificateIsUsedByTheNextConnection(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	addr := fakeKafka(t, kfake.TLS(ca.mutualTLS(t)))
	certFile, keyFile := other.issue(t, "mill", hour)
	d := &dialer{seeds: []string{addr}, security: Security{TLS: true, CAFile: ca.File, CertFile: certFile, KeyFile: keyFile}}
	if err := d.probe(t.Context()); err == nil {
		t.Fatal("a stranger's certificate was accepted")
	}
	ca.issueTo(t, "mill", hour, certFile, keyFile)
	if err := d.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSecurityCheck(t *testing.T) {
	for want, s := range map[string]Security{
		"TLS is off":         {CAFile: "ca.pem"},
		"missing one":        {TLS: true, CertFile: "cert.pem"},
		"is not known":       {Mechanism: "GSSAPI", User: "a", PasswordFile: "/p"},
		"no SASL mechanism":  {User: "a"},
		"needs a user and a": {Mechanism: mechanismPlain, User: "a"},
	} {
		if err := s.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v does not say %q", s, err, want)
		}
	}
}

func TestPlainInClearIsRefused(t *testing.T) {
	s := Security{Mechanism: mechanismPlain, User: "mill", PasswordFile: passwordFile(t, hush)}
	err := s.refuseClearText(farConn{})
	if err == nil || !strings.Contains(err.Error(), "turn TLS on") {
		t.Fatal(err)
	}
}

// farConn is a connection to another machine.
type farConn struct{ net.Conn }

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9092} }

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		hush:                       "[secret]",
		"a/" + hush:                "[secret]",
		filepath.Join(dir, "none"): "none",
		empty:                      "is empty",
		dir:                        dir,
	} {
		_, err := readSecret(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), hush) {
			t.Errorf("%s: %v", path, err)
		}
	}
	forbidden := passwordFile(t, hush+"\x01")
	s := Security{Mechanism: mechanismScram256, User: "mill", PasswordFile: forbidden}
	if _, err := s.mechanism(); err == nil || strings.Contains(err.Error(), hush) {
		t.Errorf("a password that SASL forbids: %v", err)
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	s := Security{TLS: true, Mechanism: mechanismPlain, User: "mill", PasswordFile: passwordFile(t, hush)}
	o := options(t, "mill:"+hush+"@kafka:9092", s)
	var out bytes.Buffer
	for _, v := range []any{s, &s, o, &o} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&out, verb, v)
		}
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("options", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("options", "value", v)
	}
	_, err := Open(t.Context(), o)
	fmt.Fprint(&out, err)
	if strings.Contains(out.String(), hush) || strings.Contains(out.String(), fmt.Sprintf("%x", hush)) {
		t.Errorf("printed the secret: %s", &out)
	}
	if !strings.Contains(out.String(), "[secret]") || !strings.Contains(out.String(), s.PasswordFile) {
		t.Errorf("says too little: %s", &out)
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	mustRefuse(t, "", Security{}, "TIDEMILL_KAFKA")
	mustRefuse(t, "kafka", Security{}, "kafka", "host:port")
	mustRefuse(t, "kafka://k:9092", Security{}, "host:port")

	closed := closedAddr(t)
	mustRefuse(t, closed, Security{}, closed, "is Kafka running", "TIDEMILL_KAFKA")

	old := fakeKafka(t, kfake.MaxVersions(kversion.V2_4_0()))
	mustRefuse(t, old, Security{}, old, "OffsetFetch 7 (has 6)", "TxnOffsetCommit 3", "Kafka 2.5")
	mustReach(t, fakeKafka(t, kfake.MaxVersions(kversion.V2_5_0())), Security{})
	mustReach(t, closed+","+fakeKafka(t), Security{}) // the first address is down
}

// closedAddr returns an address that refuses connections until the test ends: the client's end of a
// connection.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near.LocalAddr().String()
}

func TestOpenEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections in its backlog and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, s := range map[string]Security{
		"bare": {},
		"tls":  {TLS: true},
		"sasl": {Mechanism: mechanismScram512, User: "mill", PasswordFile: passwordFile(t, hush)},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := Open(ctx, options(t, l.Addr().String(), s))
		cancel()
		if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// authority is a CA for one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	File string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key := newKey(t)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{cert: cert, key: key, File: filepath.Join(t.TempDir(), "ca.pem")}
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// issue writes a certificate for loopback, valid until the given time, and its key.
func (a authority) issue(t *testing.T, name string, until time.Time) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	a.issueTo(t, name, until, certFile, keyFile)
	return certFile, keyFile
}

func (a authority) issueTo(t *testing.T, name string, until time.Time, certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	cert := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
}

// server returns a TLS config with a server certificate of this authority.
func (a authority) server(t *testing.T, until time.Time) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(a.issue(t, "kafka", until))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// mutualTLS is like server and asks clients for a certificate of this authority.
func (a authority) mutualTLS(t *testing.T) *tls.Config {
	t.Helper()
	config := a.server(t, time.Now().Add(time.Hour))
	config.ClientAuth = tls.RequireAndVerifyClientCert
	pool, err := readCAs(a.File)
	if err != nil {
		t.Fatal(err)
	}
	config.ClientCAs = pool
	return config
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
