package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// The SASL mechanisms that Security.Mechanism may name.
const (
	mechanismPlain    = "PLAIN"
	mechanismScram256 = "SCRAM-SHA-256"
	mechanismScram512 = "SCRAM-SHA-512"
)

// Security configures the connections to Kafka: TLS with or without a client certificate, and SASL
// PLAIN or SCRAM. It names files and holds no secret, so printing it is safe. Every new connection
// reads the files again, so a rotated password or certificate needs no restart.
type Security struct {
	TLS          bool   // whether to use TLS; no other field turns it on
	CAFile       string // PEM file of the trusted CAs; empty for the system's CAs
	CertFile     string // PEM file of our certificate, if Kafka requires one
	KeyFile      string // PEM file of the certificate's key
	ServerName   string // name in Kafka's certificate; empty for the name of the dialed host
	Mechanism    string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty for no SASL
	User         string
	PasswordFile string
}

// check returns an error if fields contradict each other. check reads no file.
func (s Security) check() error {
	if err := s.checkTLS(); err != nil {
		return err
	}
	return s.checkSASL()
}

func (s Security) checkTLS() error {
	if !s.TLS && (s.CAFile != "" || s.CertFile != "" || s.KeyFile != "" || s.ServerName != "") {
		return errors.New("check Kafka's security: a CA, a certificate or a server name is given, but TLS is off: turn TLS on (--kafka-tls)")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return errors.New("check Kafka's security: a client certificate needs both its file and its key's file: give the missing one")
	}
	return nil
}

func (s Security) checkSASL() error {
	switch s.Mechanism {
	case "":
		if s.User != "" || s.PasswordFile != "" {
			return fmt.Errorf("check Kafka's security: a user or a password file is given, but no SASL mechanism: name %s, %s or %s",
				mechanismScram512, mechanismScram256, mechanismPlain)
		}
		return nil
	case mechanismPlain, mechanismScram256, mechanismScram512:
	default:
		return fmt.Errorf("check Kafka's security: SASL mechanism %q is not known: name %s, %s or %s",
			s.Mechanism, mechanismScram512, mechanismScram256, mechanismPlain)
	}
	if s.User == "" || s.PasswordFile == "" {
		return fmt.Errorf("check Kafka's security: %s needs a user and a password file: give both", s.Mechanism)
	}
	return nil
}

// maxSecretFile limits the size of a secret, so that the path of a wrong file is an error and does
// not fill the memory.
const maxSecretFile = 64 << 10

// readSecret reads a secret from its file, without the line end that editors add. readSecret is
// called for each use, and the secret is not stored.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, secretFileError(path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, secretFileError(path, err)
	}
	if len(b) > maxSecretFile {
		return nil, fmt.Errorf("read the password file %s: it is larger than %d bytes: is it the right file?", path, maxSecretFile)
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, fmt.Errorf("read the password file %s: it is empty: write the password into it", path)
	}
	return b, nil
}

// secretFileError names the file only if it looks like a path. The most common mistake is to give
// the password instead of its file's path. Then the path is the secret.
func secretFileError(path string, err error) error {
	if cause := new(os.PathError); errors.As(err, &cause) {
		err = cause.Err
	}
	if !looksLikePath(path) {
		return fmt.Errorf("read the password file [secret]: %w: give the path of a file that holds the password, not the password", err)
	}
	return fmt.Errorf("read the password file %s: %w", path, err)
}

func looksLikePath(path string) bool {
	if !strings.ContainsRune(path, filepath.Separator) {
		return false
	}
	dir, err := os.Stat(filepath.Dir(path))
	return err == nil && dir.IsDir()
}

// startTLS does the handshake instead of kafka-go. So the files are read again for each connection,
// the context limits the time, and the error can name the next step.
func (s Security) startTLS(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config, err := s.tlsConfig(address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("secure the connection to Kafka at %s: %w%s", address, err, tlsHint(err))
	}
	return secure, nil
}

func (s Security) tlsConfig(address string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("secure the connection to Kafka at %s: %w", address, err)
		}
		config.ServerName = host
	}
	var err error
	if s.CAFile != "" {
		if config.RootCAs, err = readCAs(s.CAFile); err != nil {
			return nil, err
		}
	}
	if s.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load the client certificate %s with its key %s: %w", s.CertFile, s.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func readCAs(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the CA file %s: it holds no PEM certificate: give the CA that signed Kafka's certificate", path)
	}
	return pool, nil
}

// tlsHint returns the next step after a failed handshake, if one is known.
func tlsHint(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return ": give the file of the CA that signed Kafka's certificate"
	case errors.As(err, &name):
		return ": dial Kafka by a name in its certificate, or give that name as the server name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return ": renew Kafka's certificate, or set this machine's clock"
	case alertFromPeer(err):
		return ": Kafka refused us: give a client certificate and key that it trusts"
	case errors.As(err, &record), hungUp(err), errors.Is(err, context.DeadlineExceeded):
		return ": this port may not speak TLS: turn TLS off, or use Kafka's TLS port"
	}
	return ""
}

// alertFromPeer reports whether an error is a TLS alert from the other side.
func alertFromPeer(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// authenticate authenticates the user on a new connection. kafka-go would authenticate without a
// deadline. A broker that closes the connection after a wrong password would then appear as
// "unexpected EOF".
func (s Security) authenticate(ctx context.Context, conn net.Conn, clientID, address string) error {
	if err := s.refuseClearText(conn); err != nil {
		return err
	}
	mechanism, err := s.mechanism()
	if err != nil {
		return err
	}
	defer boundBy(ctx, conn)()
	pc := protocol.NewConn(&cautiousConn{Conn: conn}, clientID)
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.SaslHandshake: 1, protocol.SaslAuthenticate: 1})
	if err = saslHandshake(pc, s.Mechanism); err == nil {
		err = saslExchange(ctx, pc, mechanism)
	}
	if err != nil {
		return fmt.Errorf("authenticate user %q with %s to Kafka at %s: %w", s.User, s.Mechanism, address, s.saslCause(ctx, err))
	}
	return nil
}

// refuseClearText refuses to send a PLAIN password unencrypted over a network.
func (s Security) refuseClearText(conn net.Conn) error {
	if s.Mechanism != mechanismPlain || s.TLS {
		return nil
	}
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	if ok && peer.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("authenticate user %q to Kafka at %s: PLAIN without TLS would send the password in clear: turn TLS on (--kafka-tls), or use %s",
		s.User, conn.RemoteAddr(), mechanismScram512)
}

func (s Security) mechanism() (sasl.Mechanism, error) {
	password, err := readSecret(s.PasswordFile)
	if err != nil {
		return nil, err
	}
	if s.Mechanism == mechanismPlain {
		return plain.Mechanism{Username: s.User, Password: string(password)}, nil
	}
	algorithm := scram.SHA512
	if s.Mechanism == mechanismScram256 {
		algorithm = scram.SHA256
	}
	m, err := scram.Mechanism(algorithm, s.User, string(password))
	if err != nil {
		// The error is not wrapped, because its text quotes the password.
		return nil, fmt.Errorf("prepare user %q and the password in %s for %s: one holds a character that SASL forbids: remove control characters",
			s.User, s.PasswordFile, s.Mechanism)
	}
	return m, nil
}

func saslHandshake(pc *protocol.Conn, mechanism string) error {
	answer, err := pc.RoundTrip(&saslhandshake.Request{Mechanism: mechanism})
	if err != nil {
		return err
	}
	res := answer.(*saslhandshake.Response)
	if res.ErrorCode == int16(kafka.UnsupportedSASLMechanism) {
		return fmt.Errorf("%w: it offers %v: name one of them", kafka.UnsupportedSASLMechanism, res.Mechanisms)
	}
	return codeError(res.ErrorCode, "")
}

func saslExchange(ctx context.Context, pc *protocol.Conn, mechanism sasl.Mechanism) error {
	session, ours, err := mechanism.Start(ctx)
	if err != nil {
		return err
	}
	for done := false; !done; {
		answer, err := pc.RoundTrip(&saslauthenticate.Request{AuthBytes: ours})
		if err != nil {
			return err
		}
		res := answer.(*saslauthenticate.Response)
		if err := codeError(res.ErrorCode, res.ErrorMessage); err != nil {
			return err
		}
		if done, ours, err = session.Next(ctx, res.AuthBytes); err != nil {
			return err
		}
	}
	return nil
}

// saslCause returns the meaning of a failed exchange. After a wrong password some brokers send an
// error, and other brokers close the connection.
func (s Security) saslCause(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer: %w", ctx.Err())
	case alertFromPeer(err):
		return fmt.Errorf("%w%s", err, tlsHint(err))
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		return fmt.Errorf("%w: check the user and the password in %s", err, s.PasswordFile)
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		return err
	case errors.Is(err, kafka.IllegalSASLState):
		return fmt.Errorf("%w: this port may not want a user: give no SASL mechanism, or use Kafka's SASL port", err)
	case !s.TLS && hungUp(err):
		return fmt.Errorf("the broker hung up (%w): check the user and the password in %s, and whether this port wants TLS", err, s.PasswordFile)
	case hungUp(err):
		return fmt.Errorf("the broker hung up (%w): check the user and the password in %s", err, s.PasswordFile)
	}
	return err
}

func hungUp(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op)
}
