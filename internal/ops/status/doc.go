// Package status publishes how triggers and scorers are doing. Each dispatcher and each scoring
// process writes its own part to Redis every few seconds, and a gateway adds the parts up. If Redis
// cannot be read the status is unknown; the gateway never reports it as empty.
package status
