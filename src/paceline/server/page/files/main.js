// The page: a playground, the live status, and the key that both need.

import { keyDialog } from "./key.js";
import { Playground } from "./playground.js";
import { Status } from "./status.js";

const notice = document.getElementById("notice");

function tell(message) {
  notice.textContent = message;
  notice.hidden = !message;
}

const askForKey = keyDialog(() => {
  tell("");
  status.resume();
});
const playground = new Playground(() => askForKey("The key is not taken any more."));
const status = new Status(
  (found) => {
    playground.serve(found.model, found.speculation !== null);
    tell(found.speculation?.is_synthetic ? "Synthetic acceptance is on: speeds are real, the text is not the model’s." : "");
  },
  (error) => {
    tell(error.status === 401 ? "This server asks for an API key: the button at the top takes it." : error.message);
    if (error.status === 401) askForKey();
  },
);
status.resume();
