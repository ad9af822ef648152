package realservers

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"hash"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// iterations is the smallest number of SCRAM iterations that Kafka accepts.
const iterations = 4096

// createUsers gives the users their SCRAM credentials and waits until every broker accepts
// them. The credentials survive restarts.
func (k *Kafka) createUsers(ctx context.Context, users map[string]string) error {
	for mechanism, h := range map[kafka.ScramMechanism]func() hash.Hash{
		kafka.ScramMechanismSha256: sha256.New, kafka.ScramMechanismSha512: sha512.New} {
		if err := k.enrollBy(ctx, mechanism, h, users); err != nil {
			return fmt.Errorf("enroll users: %w", err)
		}
	}
	for _, n := range k.nodes {
		if err := n.proc.waitReady(ctx, func(ctx context.Context) error { return n.letsIn(ctx, users) }); err != nil {
			return err
		}
	}
	return nil
}

// enrollBy adds the users' credentials for one mechanism, because Kafka accepts a user only once
// per request.
func (k *Kafka) enrollBy(ctx context.Context, m kafka.ScramMechanism, h func() hash.Hash, users map[string]string) error {
	req := &kafka.AlterUserScramCredentialsRequest{}
	for name, password := range users {
		u, err := credential(name, password, m, h)
		if err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
		req.Upsertions = append(req.Upsertions, u)
	}
	t := &kafka.Transport{}
	defer t.CloseIdleConnections()
	r, err := (&kafka.Client{Addr: k.nodes[0].kafkaAddr(), Transport: t}).AlterUserScramCredentials(ctx, req)
	if err != nil {
		return err
	}
	for _, u := range r.Results {
		if u.Error != nil {
			return fmt.Errorf("user %s: %w", u.User, u.Error)
		}
	}
	return nil
}

func credential(name, password string, m kafka.ScramMechanism, h func() hash.Hash) (kafka.UserScramCredentialsUpsertion, error) {
	salt := []byte(rand.Text())
	salted, err := pbkdf2.Key(h, password, salt, iterations, h().Size())
	return kafka.UserScramCredentialsUpsertion{Name: name, Mechanism: m, Iterations: iterations,
		Salt: salt, SaltedPassword: salted}, err
}

// letsIn returns nil if each user can log in by SCRAM. A broker may list its users before it
// accepts their logins.
func (n *Node) letsIn(ctx context.Context, users map[string]string) error {
	for name, password := range users {
		for _, hash := range []scram.Algorithm{scram.SHA256, scram.SHA512} {
			m, err := scram.Mechanism(hash, name, password)
			if err == nil {
				err = n.login(ctx, m)
			}
			if err != nil {
				return fmt.Errorf("log in as %s: %w", name, err)
			}
		}
	}
	return nil
}

func (n *Node) login(ctx context.Context, m sasl.Mechanism) error {
	t := &kafka.Transport{SASL: m}
	defer t.CloseIdleConnections()
	at := kafka.TCP(at(n.host, n.ports[saslPlain]))
	_, err := (&kafka.Client{Addr: at, Transport: t}).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	return err
}

const (
	caPEM     = "ca.pem"     // CA that brokers trust
	brokerPEM = "broker.pem" // key and certificate of a broker
	clientPEM = "client.pem" // key and certificate of a client, for kcat
)

// certs are new for each start, and only this Kafka trusts these certificates.
type certs struct {
	ca     *x509.Certificate
	key    crypto.Signer
	holder tls.Certificate // certificate of the client
	host   net.IP          // address that brokers listen on
}

func newCerts(dir, host string) (*certs, error) {
	c := &certs{host: net.ParseIP(host)}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	of := template("tidemill test CA")
	of.IsCA, of.BasicConstraintsValid, of.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, of, of, c.key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, caPEM), certificate(der), 0o600); err != nil {
		return nil, fmt.Errorf("write the CA: %w", err)
	}
	if _, err := c.issue(dir, brokerPEM); err != nil {
		return nil, err
	}
	c.holder, err = c.issue(dir, clientPEM)
	return c, err
}

// issue writes a key and its certificate into one file.
func (c *certs) issue(dir, file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the key of %s: %w", file, err)
	}
	of := template(file)
	of.IPAddresses = []net.IP{c.host}
	der, err := x509.CreateCertificate(rand.Reader, of, c.ca, key.Public(), c.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the certificate of %s: %w", file, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("encode the key of %s: %w", file, err)
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), certificate(der)...)
	if err := os.WriteFile(filepath.Join(dir, file), both, 0o600); err != nil {
		return tls.Certificate{}, fmt.Errorf("write %s: %w", file, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (c *certs) client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{c.holder}}
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func certificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
