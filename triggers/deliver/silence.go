package deliver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

var errTimeout = errors.New("the attempt's time is over")

// silence says why no answer came, or not all of it.
func (s *subscriber) silence(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTimeout):
		return fmt.Errorf("no answer within %s", s.trigger.Delivery.Timeout)
	case cause != nil:
		return fmt.Errorf("the attempt was cut short: %w", cause)
	}
	return fmt.Errorf("no answer: %w%s", err, hint(err))
}

// hint is the next step after an error of TLS, if one is known.
func hint(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return ": give the CA that signed the subscriber's certificate as the trigger's caFile"
	case errors.As(err, &name):
		return ": give a url with a name that stands in the subscriber's certificate"
	case errors.As(err, &record):
		return ": the subscriber may not speak TLS on this port: give its url with http, or another port"
	}
	return ""
}
