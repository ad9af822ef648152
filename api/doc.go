// Package api is the language that the gateway and its clients speak: what the
// paths are and what the JSON behind them holds. It has no behaviour, so that
// both sides can import it, and openapi.json says the same to everybody else.
package api
