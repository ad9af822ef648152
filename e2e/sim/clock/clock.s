// This file lets clock.go declare functions without a body.
