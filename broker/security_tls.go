package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// startTLS does the handshake here, rather than leave it to kafka-go, because
// here the files are read anew for each connection, the context bounds it, and
// what fails can be told with its next step.
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

// tlsHint is the next step after a failed handshake, if one is known.
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
	case toldByPeer(err):
		return ": Kafka refused us: give a client certificate and key that it trusts"
	case errors.As(err, &record), hungUp(err), errors.Is(err, context.DeadlineExceeded):
		return ": this port may not speak TLS: turn TLS off, or use Kafka's TLS port"
	}
	return ""
}

// toldByPeer says whether an error is a TLS alert that the other side sent.
func toldByPeer(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
