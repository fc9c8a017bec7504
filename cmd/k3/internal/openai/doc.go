// Package openai speaks the form of OpenAI's API: it reads the bodies of POST /v1/chat/completions and /v1/completions, and
// writes the answers to them, whole or piece by piece. `k3 serve` sends them, `k3 batch` writes them to a file. There is no
// network, no file and no engine in it.
//
// Decode reads a body into a Request or refuses it with an *Error, which is what the client is told. What the model generates
// goes into a Reply, token by token; out of it come the chunks of a stream and the object that they add up to.
package openai
