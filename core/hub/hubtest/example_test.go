package hubtest_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/k3infer/k3/core/hub/hubtest"
)

// A hub answers as the real one does, until it is told to misbehave.
func ExampleHub() {
	hub := hubtest.New(map[string][]byte{"config.json": []byte("{}")})
	defer hub.Close()
	hub.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	answer, err := http.Get(hub.URL() + "/api/models/" + hub.Repo)
	if err != nil {
		log.Fatal(err)
	}
	answer.Body.Close()
	fmt.Println(answer.Status, "after", len(hub.Requests()), "request")
	// Output:
	// 503 Service Unavailable after 1 request
}
