// Package agent is the small process around the user's command in an attempt. It fetches inputs,
// runs the command, streams logs and metrics, saves checkpoints, uploads the output and reports the
// end. It talks only HTTP with the gateway, and uses the token of its attempt.
package agent
