package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// authenticate proves the user on a fresh connection. kafka-go would do it, but
// without a deadline, and a broker that answers a wrong password by hanging up
// would surface as "unexpected EOF".
func (s Security) authenticate(ctx context.Context, conn net.Conn, clientID, address string) error {
	if err := s.refuseClearText(conn); err != nil {
		return err
	}
	mechanism, err := s.mechanism()
	if err != nil {
		return err
	}
	defer boundBy(ctx, conn)()
	pc := protocol.NewConn(&modest{Conn: conn}, clientID)
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.SaslHandshake: 1, protocol.SaslAuthenticate: 1})
	if err = saslHandshake(pc, s.Mechanism); err == nil {
		err = saslExchange(ctx, pc, mechanism)
	}
	if err != nil {
		return fmt.Errorf("authenticate user %q with %s to Kafka at %s: %w", s.User, s.Mechanism, address, s.saslCause(ctx, err))
	}
	return nil
}

// refuseClearText keeps a PLAIN password off a network where it could be read.
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
		// Not wrapped: what it says quotes the password.
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

// saslCause says what a failed exchange means. Some brokers answer a wrong
// password, others hang up.
func (s Security) saslCause(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer: %w", ctx.Err())
	case toldByPeer(err):
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
