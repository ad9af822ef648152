// Package seed makes an install of Tidemill with a long history: 20,000 keys, 200,000 runs and 2,000
// dead letters. It writes the facts of that history to the stream facts of an embedded Kafka, so that
// tidemill up computes the state of every run and model from them. The judgements and reports come
// from the product's own gate and evaluation.
//
// The made folder is kept in the user's cache. Its name contains a hash of this package's source and the
// week, because the ages of the models in it are relative to the time at which it was made.
package seed
