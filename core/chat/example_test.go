package chat_test

import (
	"fmt"
	"log"

	"github.com/k3infer/k3/core/chat"
)

// Render turns a conversation into the markup that the model continues.
func ExampleRender() {
	segments, err := chat.Render(chat.User("What is the capital of France?", false))
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range segments {
		fmt.Print(s.Text)
		if s.Text == "<|sep|>" {
			fmt.Println()
		}
	}
	// Output:
	// <|open|>message role="user"<|sep|>
	// What is the capital of France?<|close|>message<|sep|>
	// <|end_of_msg|><|open|>message role="assistant"<|sep|>
	// <|open|>response<|sep|>
}

// A parser tells the parts of a reply apart as its pieces arrive, cut anywhere.
func ExampleParser() {
	p := chat.NewParser(nil, false)
	p.Write("The capital is Pa")
	p.Write("ris.<|close|>response<|se")
	p.Write("p|>")
	p.Finish()
	fmt.Println(p.Message().Plain())
	// Output:
	// The capital is Paris.
}
