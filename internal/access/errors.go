package access

import (
	"errors"
	"fmt"
)

// Why there is no caller. None of them tells anything of a token that is not
// its bearer's to know.
var (
	// ErrNoToken is a request without an Authorization header.
	ErrNoToken = errors.New("no token was given: send the header Authorization: Bearer TOKEN")
	// ErrBadToken is all of the following but ErrIssuerAway, and every other
	// fault of a token.
	ErrBadToken = errors.New("the token is refused")
	// ErrMalformed is a header that holds no token.
	ErrMalformed = fmt.Errorf("%w: it is malformed", ErrBadToken)
	// ErrUnknown is a token that the access file does not list, or no longer.
	ErrUnknown = fmt.Errorf("%w: it is not known here", ErrBadToken)
	// ErrExpired is a token whose time is over.
	ErrExpired = fmt.Errorf("%w: it has expired", ErrBadToken)
	// ErrIssuerAway is a JWT that may be good: its issuer could not be asked
	// for its keys. The same request may succeed later.
	ErrIssuerAway = errors.New("the issuer of the token cannot be asked for its keys")
)
