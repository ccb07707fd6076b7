// A component that is drawn again only where its properties differ.

import { Component, createElement } from "preact";

/** Returns the component `Inner`, drawn anew where `isSame` says that its properties are others. */
export function memo(Inner, isSame) {
  return class Memo extends Component {
    shouldComponentUpdate(next) {
      return !isSame(this.props, next);
    }

    render(props) {
      return createElement(Inner, props);
    }
  };
}
